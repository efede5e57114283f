"""Files become jobs: what is in a directory, and what changes there, each once."""

from jobreaper.redisq.producer.producing import Producer, Tally

__all__ = ["Producer", "Tally"]

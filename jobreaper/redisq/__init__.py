"""The Redis list queue: jobs that are files, in Redis lists, for many small workers.

Install the extra ``redisq`` for it. Nothing else in the package needs it.
"""

"""An example of the Redis queue: each file of a directory gets a file with its checksum beside it.

`python -m project.scans` shows it, with a worker that is killed on the way.
"""

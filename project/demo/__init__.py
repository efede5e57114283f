"""`python -m project.demo`: a worker is killed, another frozen, and no job is lost."""

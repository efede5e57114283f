"""`python -m project.demo`: a worker is killed, another frozen, and no job is lost."""

QUEUE = "jobreaper_demo"
MEDIA_QUEUE = "jobreaper_demo_media"

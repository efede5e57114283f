"""A newsletter written for django-tasks-db, on Django 5.2. It knows nothing of jobreaper:
`switched.py` and `switched_tests.py` are the settings that move it.
"""

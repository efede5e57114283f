"""A shop written for Django's `ImmediateBackend`. It knows nothing of jobreaper: `switched.py` and
`switched_tests.py` are the settings that move it.
"""

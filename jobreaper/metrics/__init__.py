"""Metrics: ``prometheus`` reads them from the database, ``otel`` counts what this process does."""

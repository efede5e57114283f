"""Functions and views in the database, and changes of tables in use."""

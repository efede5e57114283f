-- Reach: the server answers.
SELECT true

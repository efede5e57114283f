-- Finish many jobs of one worker. Back come those that were not finished, and whether their lease
-- still stands, which means that the row was locked; and, where asked for, the events of the rest.
WITH {attempts},
{finished},
{unended}

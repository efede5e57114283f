-- Release many jobs of one worker; the answer is that of finish_many.
WITH {attempts},
{released},
{unended}

sha256(decode(replace({text}, E'\\', E'\\\\'), 'escape'))

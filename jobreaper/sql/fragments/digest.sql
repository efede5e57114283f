sha256(decode(replace({text}, '\', '\\'), 'escape'))

"""Media work: clips, burned-in text and speech recognition, in tables older than jobreaper."""

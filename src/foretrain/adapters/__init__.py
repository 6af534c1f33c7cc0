"""Other tools' formats: what they say is read, what we say is written in their words."""

"""What `anncestry` can be told to do: a module a group of commands, each with its own part of the parser."""

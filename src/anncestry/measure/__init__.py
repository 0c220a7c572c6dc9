"""The stages that touch a running server: load and query session."""

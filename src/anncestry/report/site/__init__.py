"""Pages of the report, their templates and static files, and the files beside them for download."""

"""History and events as tables, rows as jobs; needs the extra `spark`, reading a lake only `sql`."""

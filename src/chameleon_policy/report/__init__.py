"""Results for readers: terminal tables, charts (matplotlib) and self-contained pages (Jinja2).

Read in this order: palette, tables, paper -> charts -> pages, templates/ -> demo_page, comparison/,
probe_tables, probe_figures, theatre/ -> run_report.
"""

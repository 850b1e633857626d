"""Reproductions beside the paper's own numbers: tables, claims, figures, the page and RESULTS.md."""

"""The paper's tables and figures: recipes, search, runs, claims and result pages."""

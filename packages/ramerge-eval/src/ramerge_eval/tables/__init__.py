"""`ramerge table`: models side by side, in the columns of the paper's tables or in all that was run.

layouts      which columns there are, and the paper's own rows; both are data, in `paper.json`
roles        which model is the base, an agent or a merge, from records or as the user says; for `build` and `merging`
scores       `Table`, and its cells as a data frame: scores with intervals, replicates; items that two models share
build        a table of all models: rows, ranks, differences and notes; notes and checks of columns, for `compare`
compare      a table of two models: paired tests, column by column
merging      a table of merges: what they have kept of each agent's skill (retention)
views        the tables of the tab Compare of `ramerge ui`, as parts of a page
render       a `Table` → text, Markdown, HTML or CSV, by pandas
"""

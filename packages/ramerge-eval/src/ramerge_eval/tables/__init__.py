"""`ramerge table`: models side by side, in the columns of the paper's tables or in all columns that were run.

layouts      the columns of each table, and the paper's own rows; both are data, in `paper.json`
roles        finds the role of each model: base, agent or merge, from records or the user; for `build` and `merging`
scores       `Table`, and its cells as a data frame: scores with intervals, replicates; items that two models share
build        a table of all models: rows, ranks, differences and notes; notes and checks of columns, for `compare`
compare      a table of two models: paired tests, column by column
merging      a table of merges: how much of each agent's skill they retain
views        the tables of the tab Compare of `ramerge ui`, as parts of a page
render       a `Table` → text, Markdown, HTML or CSV, by pandas
"""

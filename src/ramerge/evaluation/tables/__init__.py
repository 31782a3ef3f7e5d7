"""`ramerge table`: models side by side, in the columns of the paper's tables or in all that was run.

layouts                    which columns there are, and the paper's own rows; both are data, in `paper.json`
roles                      which model is the base, an agent or a merge
scores                     scores with their intervals, and bootstrap replicates of columns
build, compare, merging    samples of models → a `Table`, whose cells are a data frame
render                     a `Table` → text, Markdown, HTML or CSV, by pandas
"""

"""`ramerge table`: results of models side by side, in the columns of the paper's tables or in all that was run.

build, compare     results  →  a `Table`: scores of models, or paired tests between two
layouts, roles     which columns; which model is the base, an agent or a merge
scores, marks      averages and intervals; which cells stand out
notes, paper       sentences below the table; the paper's own rows
model, render      the table as values, and as text, Markdown, LaTeX, HTML or CSV

    results = read(folder)                                     # of `evaluation.samples`
    print(render(build(results, "table1", reference="paper"), "markdown"))
    print(render(compare(results, "ram-plus", "ram"), "text"))
"""

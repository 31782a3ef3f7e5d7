"""The merging methods, one paper a file. Names of methods are in parentheses where they are not the file's.

What a method is, and all of them:

registry         all methods by entry point, for recipes, commands and features; a method as plain values
base             `Method`, `RowMethod`, `Statistic`, `Parameters` and types that planning and the engine know; fields of
                 parameters
define           `merge_method`: a method from an annotated formula of one element, for our own and for plug-ins
formula          methods that are a formula of one element: `ElementMethod`, and `CountedMethod` with statistics;
                 weighted sums of more agents than a kernel takes: for `gram`, linear and task_arithmetic
gram             methods that combine models linearly, by lengths and angles: the statistic `Gram`, and cosines
matrices         methods that solve for whole matrices; which tensors are such matrices, for planning, too
means            methods that are weighted means of checkpoints, as those of `soups`: for `planning/soups`

Statistics and parts that methods share:

quantiles        `Values` of given ranks, found by counting: for `trim`, breadcrumbs, sce and arcee_fusion
trim             the largest magnitudes of task vectors, and the threshold of each agent: for ties and ram
sums             sums over segments of tensors: for `gram`, `moved`, breadcrumbs, della and sce
moved            when an agent has moved an element: epsilons, absolute or relative, and advice about them for
                 `planning/explain` and `engine/warn`
drop_mask        random draws that drop elements, and their keys: for `formula`, `trim`, dare and della
other_result     another method's result as the `Start` of a method: for regmean, svc and aim

Papers. Formulas of one element, most of them with statistics:

ram              RAM (ram, ram+, ram+s); how often agents moved elements alone, for analysis, too
isolate          one agent's region by itself
task_arithmetic  weighted sums of task vectors; and formulas of such sums, for methods that solve for matrices only
linear           weighted means of the agents themselves
fisher           means weighted by importances
passthrough      one model as it is, for `ramerge convert`
ties             TIES; the election of signs, for breadcrumbs and dare, too
dare             random drops (dare, dare_ties)
breadcrumbs      without the largest and the smallest entries (breadcrumbs, breadcrumbs_ties); restored norms, as in
                 della
sce              FuseChat's select, calculate, erase

Whole rows:

della            drops by rank in the row (della, della_linear)
arcee_fusion     the most important changes of one agent

Linear combinations by Gram matrices:

slerp            between two models (slerp, nuslerp)
multislerp       the mean direction of several
karcher          the mean on a sphere
model_stock      the mean, pulled back to the base

Whole matrices by their spectra:

tsvm             leading directions of all agents, made orthogonal to each other
iso_c            all singular values equal
iso_cts          common and own directions, all equally strong
psa              each agent at its own norm
knots            TIES in a shared basis
resmerge         heads and residuals by themselves
svc              directions scaled by how often agents added to them
core             weighted sums by `linalg/core_coefficients` (core, core+); these weights (`core_factors`) for `swudi`
wudi             the least interference
swudi            the same in leading directions (swudi, aswudi)

By recorded inputs, which `ramerge calibrate` gathers:

regmean          what each agent's layer does to its inputs, towards a prior
aim              less change where the base is active
"""

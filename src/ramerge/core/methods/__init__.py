"""The merging methods, one paper per file. Method names are in parentheses if they differ from the file's name.

The definition of a method, and the list of all of them:

registry         all methods by entry point, for recipes, commands and features; a method as plain values
base             `Method`, `RowMethod`, `Statistic`, `Parameters` and the types that planning and the engine use; fields
                 of parameters
define           `merge_method`: a method from an annotated formula of one element, for built-in methods and plug-ins
formula          methods that are a formula of one element: `ElementMethod`, and `CountedMethod` with statistics;
                 weighted sums of more agents than a kernel takes: for `gram`, linear and task_arithmetic
gram             methods that combine models linearly, by lengths and angles: the statistic `Gram`, and cosines
matrices         methods that solve for whole matrices; tells planning which tensors are such matrices
means            methods that are weighted means of checkpoints, such as those of `soups`: for `planning/soups`

Statistics and parts that methods share:

quantiles        `Values` of given ranks, found by counting: for `trim`, breadcrumbs, sce and arcee_fusion
trim             the largest magnitudes of task vectors, and the threshold of each agent: for ties and ram
sums             sums over segments of tensors: for `gram`, `moved`, breadcrumbs, della and sce
moved            when an element counts as moved: epsilons, absolute or relative, and advice about them for
                 `planning/explain` and `engine/warn`
drop_mask        random draws that drop elements, and their keys: for `formula`, `trim`, dare and della
other_result     another method's result as the `Start` of a method: for regmean, svc and aim

Papers. Formulas of one element, most of them with statistics:

ram              RAM (ram, ram+, ram+s); counts of elements that only one agent moved, also for analysis
isolate          one agent's region alone
task_arithmetic  weighted sums of task vectors, also for the other tensors of methods that solve only for matrices
linear           weighted means of the agents themselves
fisher           means weighted by importances
passthrough      one model unchanged, for `ramerge convert`
ties             TIES; the election of signs, also for breadcrumbs and dare
dare             random drops (dare, dare_ties)
breadcrumbs      task vectors without their largest and smallest entries (breadcrumbs, breadcrumbs_ties); restores
                 norms, also for della
sce              FuseChat's select, calculate, erase

Whole rows:

della            drops by rank in the row (della, della_linear)
arcee_fusion     the most important changes of one agent

Linear combinations by Gram matrices:

slerp            between two models (slerp, nuslerp)
multislerp       the mean direction of several models
karcher          the mean on a sphere
model_stock      the mean, pulled back to the base

Whole matrices by their spectra:

tsvm             leading directions of all agents, made orthogonal to each other
iso_c            makes all singular values equal
iso_cts          common and task-specific directions, all equally strong
psa              singular vectors made orthogonal, with each agent at its own norm
knots            TIES in a shared basis
resmerge         merges heads and residuals separately
svc              scales directions by how often agents added to them
core             weighted sums by `linalg/core_coefficients` (core, core+); `core_factors` computes the weights, also
                 for `swudi`
wudi             least interference
swudi            WUDI in leading directions only (swudi, aswudi)

With recorded inputs, which `ramerge calibrate` gathers:

regmean          matches each agent's layer on its inputs, and otherwise stays near a prior
aim              less change where the base is active
"""

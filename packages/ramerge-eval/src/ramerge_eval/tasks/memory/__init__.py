"""`ramerge/memory`: questions on long contexts, RULER's HotpotQA and SQuAD, the way MemAgent asks them.

task         the Inspect task: contexts are drawn, read chunk by chunk, and answers scored; calls the others
corpus       the data: documents, and questions on them
protocol     prompts, the answer in a reply, and its score
tokens       the model's tokenizer: how long texts are, and chunks of them

Sources: Yu et al., MemAgent, 2025, arXiv 2507.02259, with its code (github.com/BytedTsinghua-SIA/MemAgent); Hsieh et
al., RULER, 2024, arXiv 2404.06654. A context is numbered documents with blank lines between them: the question's own,
then others of its article (SQuAD), then any others, up to so many documents (HotpotQA) or tokens of the model
(SQuAD, the problem and 32 tokens for an answer included), in random order. Questions are the first ones of the
development set in its order; SQuAD's unanswerable ones are left out. The first gold answer counts.

The context's tokens are read in chunks of 5000. For each, one chat of one message has the problem, the memory and the
chunk; the reply is the new memory. A last chat answers from the problem and the memory.

Where it differs from the original on purpose:

- A failed or empty reply counts 0, and so does an answer that normalizing leaves nothing of. There the first leave the
  denominator and the second is right for every question.
- HotpotQA's 128 questions there are those that Qwen2.5-7B cannot answer without the context. `hotpotqa_questions` among
  the data gives them; see `corpus.load`.
- Documents are drawn and shuffled from the seed for each sample. There, all samples of a length are shuffled alike.
- SQuAD contexts are filled for each sample. There, the number of documents that fits the first question is everyone's.
- Too few distinct documents for a length are an error, as an answer that is there many times is easier to find.
  `repeat_documents` repeats all documents in turn, as RULER does.
- F1 is not rounded for each sample.
"""

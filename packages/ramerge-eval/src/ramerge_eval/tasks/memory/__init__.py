"""`ramerge/memory`: questions on long contexts, RULER's HotpotQA and SQuAD, by MemAgent's protocol.

task         the Inspect task: draws contexts, lets the model read them in chunks, and scores answers; calls the others
corpus       the data: documents, and questions on them
protocol     prompts; finds the answer in a reply, and scores it
tokens       the model's tokenizer: lengths and chunks of texts

Sources: Yu et al., MemAgent, 2025, arXiv 2507.02259, with its code (github.com/BytedTsinghua-SIA/MemAgent); Hsieh et
al., RULER, 2024, arXiv 2404.06654. A context consists of numbered documents with blank lines between them: the
question's own, then others of its article (SQuAD), then any others, up to a number of documents (HotpotQA) or of the
model's tokens (SQuAD, including the problem and 32 tokens for an answer), in random order. Questions are the first of
the development set, in its order, without SQuAD's unanswerable questions. The first gold answer counts.

The context is read in chunks of 5000 tokens. For each chunk, a chat of one message has the problem, the memory and the
chunk; the reply is the new memory. A last chat answers from the problem and the memory.

Intended differences from the original:

- A failed or empty reply counts 0, and so does an answer that is empty after normalizing. In the original, the former
  leave the denominator, and the latter are right for every question.
- The original uses 128 questions of HotpotQA that Qwen2.5-7B cannot answer without the context. To use them, pass
  `hotpotqa_questions` as data; see `corpus.load`.
- Documents are drawn and shuffled from the seed for each sample. In the original, all samples of a length are shuffled
  alike.
- SQuAD contexts are filled for each sample. In the original, all samples get the number of documents that fits the
  first question.
- Too few distinct documents for a length are an error, because a repeated answer is easier to find.
  `repeat_documents` repeats all documents in turn, as RULER does.
- F1 is not rounded for each sample.
"""

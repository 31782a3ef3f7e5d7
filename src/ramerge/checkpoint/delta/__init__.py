"""Deltas: what an agent changed of its base, in blocks that can be read in any order.

codec     a block of words and its base's: to the bytes of a file and back; digests
layout    the index: which tensors there are, and where their blocks are; it is not trusted
write     the files, written in order
spool     blocks in any order, until they are appended to the files
collect   appends them
beside    headers, and the files beside the weights
apply     the agent's files again, to the byte
progress  what listeners hear
"""

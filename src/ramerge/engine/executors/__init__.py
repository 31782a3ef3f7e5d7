"""Ways to map a function over blocks. They know nothing of merging.

executor     what an executor is
threads      threads of this process
ray          tasks on the nodes of a Ray cluster
"""

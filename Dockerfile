# syntax=docker/dockerfile:1
# `docker build --tag ramerge .`, then
# `docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" ramerge merge --base base --agent code=coder OUT`

FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# What `make` needs, for the dev container. No user of its own: editors make one.
FROM python:3.11-bookworm AS dev
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap chromium git make \
    && rm -rf /var/lib/apt/lists/*

FROM python:3.11-slim-bookworm AS run
COPY constraints.txt /tmp/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /wheels/*.whl)[remote]"
# Compiled kernels are kept here; mount a volume to keep them between containers.
ENV XDG_CACHE_HOME=/cache
RUN mkdir --mode=1777 /cache /work
USER nobody
WORKDIR /work
ENTRYPOINT ["ramerge"]

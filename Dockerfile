# syntax=docker/dockerfile:1
# The server, its workers and the command-line client for CPUs, from the package of this tree.
#
#   docker build -t switchyard .
#   docker run --rm --name switchyard switchyard                      # serves the demo model, to clients in this container
#   docker exec switchyard switchyard generate --text="Once upon a time"
#
# deploy/README.md has how to serve a model of your own to other machines.

FROM debian:12 AS package
WORKDIR /src
# First what seldom changes.
COPY deploy/install-deps.sh deploy/install-deps.sh
RUN deploy/install-deps.sh && apt-get install -y --no-install-recommends dpkg-dev
COPY . .
RUN --mount=type=cache,target=/root/.cache/ccache \
    deploy/build.sh -DSY_CUDA=OFF -DSY_TESTS=OFF -DSY_BENCH=OFF switchyard-server switchyard-worker switchyard \
    && cpack -G DEB --config build/release/CPackConfig.cmake -B /out \
    && mv /out/switchyard_*.deb /out/switchyard.deb

FROM debian:12-slim AS runtime
LABEL org.opencontainers.image.title="Switchyard" \
      org.opencontainers.image.description="serves and trains Mixture-of-Experts language models" \
      org.opencontainers.image.licenses="Apache-2.0"
# The user has a number that Kubernetes can check, so it is made before the package would make it.
RUN groupadd --gid 10001 switchyard \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/switchyard --create-home --shell /usr/sbin/nologin switchyard
COPY --from=package /out/switchyard.deb /tmp/switchyard.deb
RUN apt-get update \
    && apt-get install -y --no-install-recommends /tmp/switchyard.deb \
    && rm -rf /var/lib/apt/lists/* /tmp/switchyard.deb
USER 10001:10001
WORKDIR /var/lib/switchyard
# HTTP; gRPC of users, of jobs and administration, of workers from elsewhere; metrics.
EXPOSE 8000 50051 50052 50053 9464
STOPSIGNAL SIGTERM
# Whether the server lives.  With TLS or another port, give a --health-cmd of your own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["switchyard", "status", "--health=alive", "--timeout=4"]
ENTRYPOINT ["switchyard-server"]
CMD ["--config=/etc/switchyard/server.yaml"]

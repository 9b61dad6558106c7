# The image of tier and operator: toktierctl and toktier-operator. Runs as a user without rights on a read-only root: it
# writes to /tmp and to the volumes it is given.
#   docker build -t toktier .
#   docker run --read-only --tmpfs /tmp -v ./tier.yaml:/etc/toktier/tier.yaml:ro -p 8080:8080 -p 50051:50051 toktier
# For GPUs (docs/gpu.md): docker build -t toktier:gpu --build-arg EXTRAS=tier,operator,gpu --build-arg PACKAGES="gcc libc6-dev" .
# e2e/image/build makes the same from Debian's packages, without a registry.
FROM python:3.11-slim-bookworm AS build
ARG EXTRAS=tier,operator
COPY . /src
RUN python -m venv /opt/toktier \
    && /opt/toktier/bin/pip install --no-cache-dir "/src[$EXTRAS]" \
    && /src/.ci/releases /opt/toktier/bin/python \
    && /opt/toktier/bin/pip uninstall --yes pip setuptools

FROM python:3.11-slim-bookworm
ARG PACKAGES=
RUN if [ -n "$PACKAGES" ]; then apt-get update && apt-get install -y --no-install-recommends $PACKAGES \
    && rm -rf /var/lib/apt/lists/*; fi
RUN groupadd --gid 65532 toktier && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp toktier
COPY --from=build /opt/toktier /opt/toktier
ENV PATH=/opt/toktier/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
EXPOSE 8080 50051
ENTRYPOINT ["toktierctl"]
CMD ["serve", "/etc/toktier/tier.yaml"]

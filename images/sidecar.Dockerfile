# The sidecar. From the repository's root: docker build -f images/sidecar.Dockerfile -t pagoda-sidecar .
FROM python:3.11-slim-bookworm AS build
COPY . /source
ENV XDG_CACHE_HOME=/cache
RUN --mount=type=cache,target=/cache /source/images/sidecar.sh /rootfs

FROM scratch
COPY --from=build /rootfs /
ENV PATH=/usr/local/bin PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "pagoda_sidecar"]

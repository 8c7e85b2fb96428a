# The router. From the repository's root: docker build -f images/router.Dockerfile -t pagoda-router .
FROM python:3.11-slim-bookworm AS build
COPY . /source
ENV XDG_CACHE_HOME=/cache
RUN --mount=type=cache,target=/cache /source/images/router.sh /rootfs

FROM scratch
COPY --from=build /rootfs /
ENV PATH=/usr/local/bin PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "pagoda_router"]

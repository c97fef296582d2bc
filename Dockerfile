# For those who would rather build with Docker: the image of `make image`.
#   docker build --build-arg VERSION=v0.1.0 --build-arg REVISION=$(git rev-parse HEAD) .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=v0.0.0-dev
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH make manager VERSION=$VERSION

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /src/bin/manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
ARG VERSION=v0.0.0-dev REVISION=unknown
LABEL org.opencontainers.image.title="cluster-api-ipam-provider-butler" \
      org.opencontainers.image.description="A Cluster API IPAM provider" \
      org.opencontainers.image.source="https://github.com/butlerdotdev/cluster-api-ipam-provider-butler" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"

# The program and nothing else: no shell, no libraries, and no user but a number. It
# writes nowhere, so the root may be read-only. As process 1 it gets the signals itself:
# SIGTERM stops a relay in order.
#
# The context has a static program for each platform, which a release puts there. By
# hand, in a folder of its own:
#
#	CGO_ENABLED=0 go build -tags timetzdata -o image/linux/amd64/outbox ./cmd/outbox
#	cp LICENSE image
#	docker build --build-arg TARGETPLATFORM=linux/amd64 --file Dockerfile --tag outbox image
FROM scratch
ARG TARGETPLATFORM
COPY LICENSE /LICENSE
COPY ${TARGETPLATFORM}/outbox /usr/bin/outbox
USER 65532:65532
EXPOSE 9464
ENTRYPOINT ["/usr/bin/outbox"]
CMD ["help"]

package main

// Certificates to trust on systems that have none, such as an image without a system.
import _ "golang.org/x/crypto/x509roots/fallback"

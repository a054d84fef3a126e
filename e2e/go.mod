module github.com/narad-mq/narad/e2e

go 1.26.0

require github.com/narad-mq/narad/libs v0.0.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/klauspost/compress v1.20.4
	github.com/narad-mq/narad/libs/client v0.0.0
)

require github.com/go-json-experiment/json v1.27.2 // indirect

replace github.com/narad-mq/narad/libs => ../libs

replace github.com/narad-mq/narad/libs/client => ../libs/client

module github.com/narad-mq/narad/apps/purge-sweeper

go 1.26.0

require github.com/narad-mq/narad/libs v0.0.0

require (
	github.com/go-json-experiment/json v1.27.2
	github.com/urfave/cli/v2 v2.27.7
	go.uber.org/goleak v1.3.0
)

require (
	github.com/cpuguy83/go-md2man/v2 v2.0.7 // indirect
	github.com/kr/pretty v0.3.1 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	github.com/russross/blackfriday/v2 v2.1.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/xrash/smetrics v0.0.0-20240521201337-686a1a2994c1 // indirect
	gopkg.in/check.v1 v1.0.0-20201130134442-10cb98267c6c // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/narad-mq/narad/libs => ../../libs

replace github.com/narad-mq/narad/libs/client => ../../libs/client

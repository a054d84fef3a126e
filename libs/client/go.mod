module github.com/narad-mq/narad/libs/client

go 1.26.0

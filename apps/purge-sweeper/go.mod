module github.com/narad-mq/narad/apps/purge-sweeper

go 1.26.0

require github.com/narad-mq/narad/libs v0.0.0
require github.com/narad-mq/narad/libs/client v0.0.0
replace github.com/narad-mq/narad/libs => ../../libs
replace github.com/narad-mq/narad/libs/client => ../../libs/client

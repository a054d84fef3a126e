package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/narad-mq/narad/libs/client"
)

func Example() {
	ctx := context.Background()
	c, err := client.New(client.Config{URLs: []string{"http://gateway-1:7942", "http://gateway-2:7942"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.CreateTopicIfAbsent(ctx, client.TopicSpec{Name: "orders", Partitions: 6}); err != nil {
		log.Fatal(err)
	}
	_, err = c.Produce(ctx, "orders", client.Message{Payload: []byte(`{"id":1}`), Key: []byte("customer-7")}, client.ProduceOptions{})
	var e *client.Error
	if errors.As(err, &e) && e.Applied == client.AppliedUnknown {
		fmt.Println("it may have been stored:", err)
	}
}

func ExampleClient_Consume() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	c, err := client.New(client.Config{})
	if err != nil {
		log.Fatal(err)
	}
	// Returns when ctx ends, after the running handlers have finished.
	err = c.Consume(ctx, "orders", func(_ context.Context, d client.Delivery) error {
		fmt.Printf("%s: %s\n", d.ID, d.Payload)
		return nil // acks; an error gives the message back
	}, client.ConsumeOptions{
		Workers: 16,
		OnError: func(err error) { log.Print(err) },
	})
	if err != nil {
		log.Fatal(err)
	}
}

package io.tidelog.compat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes numbered records with a producer's defaults, idempotent and with acks=all: options as one JSON argument; a line
 * for each number once it is acknowledged, or for why it failed; the end of the standard input ends it.
 */
public final class NumberedWriter {
  private NumberedWriter() {}

  public static void main(String[] arguments) throws Exception {
    // Whatever a library prints must not end up among the lines.
    PrintStream lines = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    JsonNode options = new ObjectMapper().readTree(arguments[0]);
    String topic = options.get("topic").asText();
    Properties settings = new Properties();
    settings.put("bootstrap.servers", options.get("bootstrap").asText());
    AtomicBoolean over = new AtomicBoolean();
    Thread waiting = new Thread(() -> waitForEnd(over), "end");
    waiting.setDaemon(true);
    waiting.start();
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (int number = 0; !over.get(); number++) {
        String text = Integer.toString(number);
        byte[] key = Integer.toString(number % 97).getBytes(StandardCharsets.UTF_8);
        producer.send(
            new ProducerRecord<>(topic, key, text.getBytes(StandardCharsets.UTF_8)),
            (metadata, error) -> lines.println(error == null ? text : "failed: " + text + ": " + error));
        Thread.sleep(2);
      }
    }
  }

  private static void waitForEnd(AtomicBoolean over) {
    try {
      while (System.in.read() >= 0) {
        continue;
      }
    } catch (java.io.IOException error) {
      throw new java.io.UncheckedIOException(error);
    } finally {
      over.set(true);
    }
  }
}

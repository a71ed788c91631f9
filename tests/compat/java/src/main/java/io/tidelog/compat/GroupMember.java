package io.tidelog.compat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group: options as one JSON argument, JSON lines out of what it is given, gives up and reads. Times are
 * those of the machine's monotonic clock, in seconds. SIGTERM makes it leave.
 */
public final class GroupMember {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long COMMIT_INTERVAL_NS = 250_000_000L;
  private static final Map<String, String> ASSIGNORS = Map.of(
      "range", "org.apache.kafka.clients.consumer.RangeAssignor",
      "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
      "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
      "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

  private final PrintStream lines;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
  private volatile boolean stopping = false;

  private GroupMember(JsonNode options, PrintStream lines) {
    this.lines = lines;
    Properties settings = new Properties();
    settings.put("bootstrap.servers", options.get("bootstrap").asText());
    settings.put("group.id", options.get("group").asText());
    String protocol = options.get("protocol").asText();
    settings.put("group.protocol", protocol);
    if (protocol.equals("classic")) {
      // In the new protocol these are the broker's matter, and the client refuses them.
      settings.put("partition.assignment.strategy", ASSIGNORS.get(options.get("assignor").asText()));
      settings.put("session.timeout.ms", options.get("session_ms").asInt());
      settings.put("heartbeat.interval.ms", 500);
    }
    settings.put("enable.auto.commit", false);
    settings.put("auto.offset.reset", "earliest");
    settings.put("metadata.max.age.ms", 500);
    if (options.hasNonNull("instance")) {
      settings.put("group.instance.id", options.get("instance").asText());
    }
    consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    consumer.subscribe(List.of(options.get("topic").asText()), new Listener());
  }

  public static void main(String[] arguments) throws Exception {
    // Whatever a library prints must not end up among the lines.
    PrintStream lines = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    GroupMember member = new GroupMember(JSON.readTree(arguments[0]), lines);
    Thread reading = Thread.currentThread();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      member.stopping = true;
      try {
        reading.join();
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
      }
    }));
    member.run();
  }

  private void run() {
    long nextCommit = System.nanoTime();
    while (!stopping) {
      List<int[]> read = new ArrayList<>();
      for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
        read.add(new int[] {record.partition(), (int) record.offset()});
        positions.put(
            new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
      }
      if (!read.isEmpty()) {
        tell(Map.of("event", "read", "records", read));
      }
      if (System.nanoTime() >= nextCommit) {
        commit(positions.keySet());
        nextCommit = System.nanoTime() + COMMIT_INTERVAL_NS;
      }
    }
    consumer.close();
  }

  private void commit(Collection<TopicPartition> partitions) {
    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(positions);
    offsets.keySet().retainAll(partitions);
    if (offsets.isEmpty()) {
      return;
    }
    try {
      consumer.commitSync(offsets);
    } catch (KafkaException error) {
      tell(Map.of("event", "refused", "error", error.toString()));
    }
  }

  private void tell(Map<String, Object> line) {
    try {
      lines.println(JSON.writeValueAsString(line));
    } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }

  private void tellOwnership(String event, Collection<TopicPartition> partitions) {
    List<Integer> numbers = partitions.stream().map(TopicPartition::partition).sorted().toList();
    tell(Map.of("event", event, "at", System.nanoTime() / 1e9, "partitions", numbers));
  }

  private final class Listener implements ConsumerRebalanceListener {
    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
      tellOwnership("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
      commit(partitions);
      positions.keySet().removeAll(partitions);
      tellOwnership("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
      positions.keySet().removeAll(partitions);
      tellOwnership("revoked", partitions);
    }
  }
}

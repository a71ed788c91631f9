package io.tidelog.compat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Carries out one step a line: JSON in on standard input, {"result": ...} or {"error": ...} out on standard output.
 * Clients are made with the bootstrap address and what the step itself asks for, nothing more.
 */
public final class ScenarioDriver {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long WAIT_S = 30;

  private final String bootstrap;
  private final Admin admin;

  private ScenarioDriver(String bootstrap) {
    this.bootstrap = bootstrap;
    this.admin = Admin.create(settings());
  }

  public static void main(String[] arguments) throws Exception {
    // Whatever a library prints must not end up among the answers.
    PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    ScenarioDriver driver = new ScenarioDriver(arguments[0]);
    BufferedReader steps = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = steps.readLine(); line != null; line = steps.readLine()) {
      Map<String, Object> answer = new HashMap<>();
      try {
        answer.put("result", driver.carryOut(JSON.readTree(line)));
      } catch (Exception error) {
        error.printStackTrace();
        answer.put("error", error.toString());
      }
      answers.println(JSON.writeValueAsString(answer));
    }
    driver.admin.close();
  }

  private Object carryOut(JsonNode step) throws Exception {
    return switch (step.get("do").asText()) {
      case "create_topic" -> createTopic(step);
      case "produce" -> produce(step);
      case "consume" -> consume(step);
      case "watermarks" -> watermarks(step);
      case "offset_for_time" -> offsetForTime(step);
      case "topic_config" -> topicConfig(step);
      case "alter_topic_config" -> alterTopicConfig(step);
      case "grow_partitions" -> growPartitions(step);
      case "delete_records" -> deleteRecords(step);
      case "delete_topic" -> deleteTopic(step);
      case "topics" -> topics();
      case "partitions_of_keys" -> partitionsOfKeys(step);
      default -> throw new IllegalArgumentException("unknown step " + step);
    };
  }

  private Object createTopic(JsonNode step) throws Exception {
    Map<String, String> configs = new HashMap<>();
    step.get("configs").fields().forEachRemaining(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
    short replicas = (short) step.get("replicas").asInt();
    NewTopic topic = new NewTopic(topicOf(step), step.get("partitions").asInt(), replicas).configs(configs);
    admin.createTopics(List.of(topic)).all().get(WAIT_S, TimeUnit.SECONDS);
    return null;
  }

  private Object produce(JsonNode step) throws Exception {
    Properties settings = settings();
    settings.put("compression.type", step.get("compression").asText());
    settings.put("acks", step.get("acks").asText());
    settings.put("enable.idempotence", step.get("idempotent").asText());
    if (!step.get("linger_ms").isNull()) {
      settings.put("linger.ms", step.get("linger_ms").asText());
    }
    boolean transactional = !step.get("transactional_id").isNull();
    if (transactional) {
      settings.put("transactional.id", step.get("transactional_id").asText());
    }
    List<Future<RecordMetadata>> sent = new ArrayList<>();
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
      if (transactional) {
        producer.initTransactions();
        producer.beginTransaction();
      }
      for (JsonNode record : step.get("records")) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.get("headers")) {
          headers.add(new RecordHeader(header.get(0).asText(), bytesOf(header.get(1))));
        }
        JsonNode timestamp = record.get("timestamp");
        sent.add(
            producer.send(
                new ProducerRecord<>(
                    topicOf(step),
                    step.get("partition").asInt(),
                    timestamp.isNull() ? null : timestamp.asLong(),
                    bytesOf(record.get("key")),
                    bytesOf(record.get("value")),
                    headers)));
      }
      if (transactional) {
        producer.flush();
        if (step.get("commits").asBoolean()) {
          producer.commitTransaction();
        } else {
          producer.abortTransaction();
        }
      }
    }
    List<Long> offsets = new ArrayList<>();
    for (Future<RecordMetadata> future : sent) {
      RecordMetadata metadata = future.get(WAIT_S, TimeUnit.SECONDS);
      offsets.add(metadata.hasOffset() ? metadata.offset() : -1L);
    }
    return offsets;
  }

  private Object consume(JsonNode step) throws Exception {
    int count = step.get("count").asInt();
    List<Object> rows = new ArrayList<>();
    String isolation = step.get("isolation").isNull() ? "read_uncommitted" : step.get("isolation").asText();
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(isolation)) {
      consumer.assign(List.of(partitionOf(step)));
      consumer.seek(partitionOf(step), step.get("offset").asLong());
      long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
      while (rows.size() < count) {
        if (System.nanoTime() > deadline) {
          throw new IllegalStateException("only " + rows.size() + " of " + count + " records arrived");
        }
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
          if (rows.size() < count) {
            rows.add(rowOf(record));
          }
        }
      }
    }
    return rows;
  }

  private static Map<String, Object> rowOf(ConsumerRecord<byte[], byte[]> record) {
    List<Object> headers = new ArrayList<>();
    for (Header header : record.headers()) {
      List<Object> pair = new ArrayList<>();
      pair.add(header.key());
      pair.add(textOf(header.value()));
      headers.add(pair);
    }
    Map<String, Object> row = new LinkedHashMap<>();
    row.put("offset", record.offset());
    row.put("key", textOf(record.key()));
    row.put("value", textOf(record.value()));
    row.put("headers", headers);
    row.put("timestamp", record.timestamp());
    return row;
  }

  private Object watermarks(JsonNode step) {
    TopicPartition asked = partitionOf(step);
    try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
      return List.of(
          consumer.beginningOffsets(List.of(asked)).get(asked), consumer.endOffsets(List.of(asked)).get(asked));
    }
  }

  private Object offsetForTime(JsonNode step) {
    TopicPartition asked = partitionOf(step);
    try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
      OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(asked, step.get("timestamp").asLong())).get(asked);
      return found == null ? null : found.offset();
    }
  }

  private Object topicConfig(JsonNode step) throws Exception {
    ConfigResource resource = resourceOf(step);
    return admin.describeConfigs(List.of(resource)).all().get(WAIT_S, TimeUnit.SECONDS)
        .get(resource).get(step.get("name").asText()).value();
  }

  private Object alterTopicConfig(JsonNode step) throws Exception {
    ConfigEntry entry = new ConfigEntry(step.get("name").asText(), step.get("value").asText());
    admin.incrementalAlterConfigs(
            Map.of(resourceOf(step), List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET))))
        .all().get(WAIT_S, TimeUnit.SECONDS);
    return null;
  }

  private Object growPartitions(JsonNode step) throws Exception {
    admin.createPartitions(Map.of(topicOf(step), NewPartitions.increaseTo(step.get("count").asInt())))
        .all().get(WAIT_S, TimeUnit.SECONDS);
    return null;
  }

  private Object deleteRecords(JsonNode step) throws Exception {
    admin.deleteRecords(Map.of(partitionOf(step), RecordsToDelete.beforeOffset(step.get("before").asLong())))
        .all().get(WAIT_S, TimeUnit.SECONDS);
    return null;
  }

  private Object deleteTopic(JsonNode step) throws Exception {
    admin.deleteTopics(List.of(topicOf(step))).all().get(WAIT_S, TimeUnit.SECONDS);
    return null;
  }

  private Object topics() throws Exception {
    Map<String, Integer> counts = new HashMap<>();
    admin.describeTopics(admin.listTopics().names().get(WAIT_S, TimeUnit.SECONDS))
        .allTopicNames().get(WAIT_S, TimeUnit.SECONDS)
        .forEach((name, found) -> counts.put(name, found.partitions().size()));
    return counts;
  }

  /** The key's way through the partitioner that the producer has built in. */
  private static Object partitionsOfKeys(JsonNode step) throws Exception {
    List<List<Integer>> all = new ArrayList<>();
    for (JsonNode count : step.get("counts")) {
      List<Integer> partitions = new ArrayList<>();
      for (JsonNode key : step.get("keys")) {
        partitions.add(BuiltInPartitioner.partitionForKey(key.binaryValue(), count.asInt()));
      }
      all.add(partitions);
    }
    return all;
  }

  private Properties settings() {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    return settings;
  }

  private KafkaConsumer<byte[], byte[]> consumer() {
    return consumer("read_uncommitted");
  }

  private KafkaConsumer<byte[], byte[]> consumer(String isolation) {
    Properties settings = settings();
    settings.put("isolation.level", isolation);
    settings.put("auto.offset.reset", "none");
    return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  private static String topicOf(JsonNode step) {
    return step.get("topic").asText();
  }

  private static TopicPartition partitionOf(JsonNode step) {
    return new TopicPartition(topicOf(step), step.get("partition").asInt());
  }

  private static ConfigResource resourceOf(JsonNode step) {
    return new ConfigResource(ConfigResource.Type.TOPIC, topicOf(step));
  }

  private static byte[] bytesOf(JsonNode text) {
    return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
  }

  private static String textOf(byte[] raw) {
    return raw == null ? null : Base64.getEncoder().encodeToString(raw);
  }
}

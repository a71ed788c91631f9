import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies from one topic to another in transactions, as the documentation of KafkaProducer tells applications to, and
 * writes a history like the workers in Python do. Its orders are name=value arguments; the end of its input ends it.
 * Exit code 75: a client has failed for good, and the process is to be started again.
 */
public final class TortureCopier {
  private static final int RESTART = 75;
  private static final double ABORTED_SHARE = 0.15;
  private static final Duration POLL = Duration.ofMillis(200);
  private static final long PATIENCE_NS = 90_000_000_000L;
  private static final long WORKING = 1;

  /** The records of one partition within a transaction. */
  private static final class Part {
    final List<Long> offsets = new ArrayList<>();
    final List<Long> values = new ArrayList<>();
    final List<Future<RecordMetadata>> stored = new ArrayList<>();
  }

  private enum Outcome {
    OK,
    FAIL,
    UNKNOWN;

    String word() {
      return name().toLowerCase();
    }
  }

  private final String source;
  private final String target;
  private final Random random;
  private final FileOutputStream history;
  private final ByteBuffer page;
  private final KafkaProducer<byte[], byte[]> producer;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private volatile boolean over = false;
  private long acknowledged = 0;
  private long attempted = 0;
  private long failed = 0;
  private long read = 0;

  private TortureCopier(Map<String, String> orders) throws IOException {
    source = orders.get("topic");
    target = orders.get("copy_to");
    random = new Random(Long.parseLong(orders.get("seed")) * 31 + Long.parseLong(orders.get("number")));
    history = new FileOutputStream(orders.get("history"), true);
    try (RandomAccessFile file = new RandomAccessFile(orders.get("progress"), "rw")) {
      page = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 6 * Long.BYTES);
    }
    Properties settings = new Properties();
    settings.put("bootstrap.servers", orders.get("bootstrap"));
    settings.put("client.id", orders.get("name"));
    settings.put("request.timeout.ms", 5000);
    settings.put("default.api.timeout.ms", 20000);
    Properties sending = new Properties();
    sending.putAll(settings);
    sending.remove("default.api.timeout.ms");
    sending.put("transactional.id", orders.get("transactional_id"));
    sending.put("transaction.timeout.ms", 15000);
    sending.put("delivery.timeout.ms", 30000);
    sending.put("max.block.ms", 10000);
    sending.put("linger.ms", 2);
    producer = new KafkaProducer<>(sending, new ByteArraySerializer(), new ByteArraySerializer());
    settings.put("group.id", orders.get("group"));
    settings.put("session.timeout.ms", 10000);
    settings.put("heartbeat.interval.ms", 1000);
    settings.put("enable.auto.commit", false);
    settings.put("auto.offset.reset", "earliest");
    settings.put("isolation.level", "read_committed");
    consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> orders = new HashMap<>();
    for (String argument : arguments) {
      String[] parts = argument.split("=", 2);
      orders.put(parts[0], parts[1]);
    }
    TortureCopier copier = new TortureCopier(orders);
    Thread lead = new Thread(copier::listen, "lead");
    lead.setDaemon(true);
    lead.start();
    int code = 0;
    try {
      copier.run();
    } catch (KafkaException error) {
      error.printStackTrace();
      code = RESTART;
    }
    // The end of the process closes what is left; close() would wait for brokers that may be gone.
    Runtime.getRuntime().halt(code);
  }

  private void listen() {
    try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
      while (input.readLine() != null) {
        // "quiet" and "drain" change nothing for a copier: it copies whatever comes.
      }
    } catch (IOException error) {
      throw new IllegalStateException(error);
    } finally {
      over = true;
    }
  }

  private void run() throws Exception {
    show();
    again(producer::initTransactions);
    consumer.subscribe(List.of(source), new NotedRebalances());
    while (!over) {
      long start = System.nanoTime();
      ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
      if (!records.isEmpty()) {
        copy(records, start);
      }
    }
    consumer.close(Duration.ofSeconds(5));
    producer.close(Duration.ofSeconds(5));
  }

  private void copy(ConsumerRecords<byte[], byte[]> records, long start) throws Exception {
    read += records.count();
    Map<Integer, Part> parts = new LinkedHashMap<>();
    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    for (ConsumerRecord<byte[], byte[]> record : records) {
      Part part = parts.computeIfAbsent(record.partition(), number -> new Part());
      part.offsets.add(record.offset());
      part.values.add(Long.parseLong(new String(record.value(), StandardCharsets.US_ASCII)));
      offsets.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
    }
    Outcome outcome = Outcome.FAIL; // until a commit is asked for
    KafkaException failure = null;
    boolean usable = true;
    try {
      producer.beginTransaction();
      for (ConsumerRecord<byte[], byte[]> record : records) {
        parts.get(record.partition()).stored.add(
            producer.send(new ProducerRecord<>(target, record.partition(), null, record.value())));
      }
      again(() -> producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata()));
      if (random.nextDouble() < ABORTED_SHARE) {
        producer.flush(); // an abort throws away what is not sent yet
        again(producer::abortTransaction);
      } else {
        outcome = Outcome.UNKNOWN;
        // The group goes on behind these records, even if this process is killed before it knows.
        write("txn", outcome, start, System.nanoTime(), events(parts, outcome), "under way");
        again(producer::commitTransaction);
        outcome = Outcome.OK;
      }
    } catch (KafkaException error) {
      failure = error;
      usable = !isFatal(error) && abort();
    }
    note(start, parts, outcome, failure);
    if (!usable) {
      throw failure;
    }
    if (outcome != Outcome.OK) {
      goBack();
    }
  }

  /** Returns whether the producer may go on. Whether a commit before this was carried out stays unknown. */
  private boolean abort() {
    try {
      again(producer::abortTransaction);
      return true;
    } catch (KafkaException | IllegalStateException error) {
      error.printStackTrace();
      return false;
    }
  }

  private static boolean isFatal(KafkaException error) {
    return error instanceof ProducerFencedException
        || error instanceof InvalidProducerEpochException
        || error instanceof OutOfOrderSequenceException
        || error instanceof FencedInstanceIdException
        || error instanceof UnsupportedVersionException
        || error instanceof AuthorizationException
        || error instanceof AuthenticationException
        // Patience has run out: the call is still in progress, and nothing else may be called.
        || error instanceof TimeoutException
        || error instanceof InterruptException;
  }

  private void again(Runnable call) {
    long deadline = System.nanoTime() + PATIENCE_NS;
    while (true) {
      try {
        call.run();
        return;
      } catch (TimeoutException error) {
        if (over || System.nanoTime() - deadline > 0) {
          throw error;
        }
      }
    }
  }

  private void goBack() throws IOException {
    long start = System.nanoTime();
    Set<TopicPartition> assigned = consumer.assignment();
    Map<TopicPartition, OffsetAndMetadata> committed = new HashMap<>();
    again(() -> committed.putAll(consumer.committed(assigned)));
    StringBuilder events = new StringBuilder();
    for (TopicPartition partition : assigned) {
      OffsetAndMetadata stored = committed.get(partition);
      long offset = stored == null ? 0 : stored.offset();
      consumer.seek(partition, offset);
      events.append(events.length() == 0 ? "" : ",");
      events.append("[\"seek\",\"" + partition + "\"," + offset + "]");
    }
    write("seek", Outcome.OK, start, System.nanoTime(), events, "");
  }

  // The history

  private void note(long start, Map<Integer, Part> parts, Outcome outcome, KafkaException failure) throws Exception {
    long count = parts.values().stream().mapToLong(part -> part.values.size()).sum();
    write("txn", outcome, start, System.nanoTime(), events(parts, outcome), failure == null ? "" : failure.toString());
    attempted += count;
    if (outcome == Outcome.OK) {
      acknowledged += count;
    } else {
      failed += count;
    }
    show();
  }

  /** What does not count is sent again, so it is left out, or is without offsets. */
  private String events(Map<Integer, Part> parts, Outcome outcome) throws InterruptedException {
    StringBuilder events = new StringBuilder();
    for (Map.Entry<Integer, Part> entry : parts.entrySet()) {
      Part part = entry.getValue();
      int number = entry.getKey();
      List<Long> stored = new ArrayList<>();
      for (int at = 0; at < part.values.size(); at++) {
        stored.add(outcome == Outcome.OK ? offsetOf(part.stored.get(at)) : null);
      }
      long behind = part.offsets.get(part.offsets.size() - 1) + 1;
      events.append(events.length() == 0 ? "" : ",");
      events.append("[\"poll\",\"" + source + "-" + number + "\"," + compact(part.offsets) + "," + compact(part.values) + "],");
      if (outcome != Outcome.FAIL) {
        events.append("[\"send\",\"" + target + "-" + number + "\"," + compact(part.values) + "," + compact(stored) + "],");
      }
      events.append("[\"commit\",\"" + source + "-" + number + "\"," + behind + "]");
    }
    return events.toString();
  }

  private static Long offsetOf(Future<RecordMetadata> stored) throws InterruptedException {
    if (!stored.isDone()) {
      return null;
    }
    try {
      RecordMetadata metadata = stored.get();
      return metadata.hasOffset() ? metadata.offset() : null;
    } catch (java.util.concurrent.ExecutionException error) {
      return null;
    }
  }

  private static String compact(List<Long> numbers) {
    return numbers.stream().map(String::valueOf).collect(Collectors.joining(",", "[", "]"));
  }

  private synchronized void write(
      String f, Outcome outcome, long start, long end, CharSequence events, String error) throws IOException {
    String text = error.replaceAll("[\\p{Cntrl}\"\\\\]+", " ");
    String row =
        "[\"" + f + "\",\"" + outcome.word() + "\"," + start + "," + end + ",[" + events + "],\"" + text + "\"]\n";
    history.write(row.getBytes(StandardCharsets.UTF_8)); // one write, as kill -9 may come at any time
  }

  private void show() {
    long[] numbers = {acknowledged, attempted, failed, read, System.nanoTime(), WORKING};
    for (int at = 0; at < numbers.length; at++) {
      page.putLong(at * Long.BYTES, numbers[at]);
    }
  }

  private final class NotedRebalances implements ConsumerRebalanceListener {
    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
      note("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
      note("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
      note("lost", partitions);
    }

    private void note(String what, Collection<TopicPartition> partitions) {
      String keys = partitions.stream().map(each -> "\"" + each + "\"").sorted().collect(Collectors.joining(","));
      long now = System.nanoTime();
      try {
        write("rebalance", Outcome.OK, now, now, "[\"" + what + "\",[" + keys + "]]", "");
      } catch (IOException error) {
        throw new IllegalStateException(error);
      }
      show();
    }
  }
}

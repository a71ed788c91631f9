import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.UUID;
import java.util.function.Function;
import org.apache.kafka.common.serialization.*;

/**
 * Kafka's own serializers of plain types: reads lines of a type and a value in text, writes the bytes in hex; then reads
 * the bytes back by the deserializer and writes what it got as text.
 */
public class PlainTypes {
    record Kind<T>(Function<String, T> parse, Serde<T> serde) {
        String line(String text) {
            byte[] bytes = serde.serializer().serialize("topic", parse.apply(text));
            T back = serde.deserializer().deserialize("topic", bytes);
            return HexFormat.of().formatHex(bytes) + " " + HexFormat.of().formatHex(back.toString().getBytes(StandardCharsets.UTF_8));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Kind<?>> kinds = Map.of(
            "short", new Kind<>(Short::valueOf, Serdes.Short()),
            "int", new Kind<>(Integer::valueOf, Serdes.Integer()),
            "long", new Kind<>(Long::valueOf, Serdes.Long()),
            "float", new Kind<>(Float::valueOf, Serdes.Float()),
            "double", new Kind<>(Double::valueOf, Serdes.Double()),
            "boolean", new Kind<>(Boolean::valueOf, Serdes.Boolean()),
            "uuid", new Kind<>(UUID::fromString, Serdes.UUID()),
            "string", new Kind<>(text -> new String(HexFormat.of().parseHex(text), StandardCharsets.UTF_8), Serdes.String()));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", 2);
            System.out.println(kinds.get(parts[0]).line(parts[1]));
        }
    }
}

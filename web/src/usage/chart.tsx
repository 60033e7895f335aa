// A chart of stacked bars, one for each day. Its lengths are attributes, because the security policy refuses style attributes in markup.

import { shown, type Measure, type Series } from "./totals";

const WIDTH = 600;
const HEIGHT = 160;

interface Props {
  days: readonly string[];
  series: readonly Series[];
  measure: Measure;
  label: string;
}

export function Chart({ days, series, measure, label }: Props) {
  const sums = days.map((_, at) => series.reduce((sum, one) => sum + (one.days[at]?.[measure] ?? 0), 0));
  const top = Math.max(...sums, 0);
  const step = WIDTH / days.length;
  return (
    <figure className="chart">
      <figcaption className="faint">{`Most on a day: ${shown(measure, top)}`}</figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        {top > 0 && days.map((day, at) => <Bar key={day} day={day} at={at} x={at * step} width={step} top={top} series={series} measure={measure} />)}
      </svg>
      <div className="chart-days faint" aria-hidden="true">
        <span>{days[0]}</span>
        <span>{days.at(-1)}</span>
      </div>
    </figure>
  );
}

interface BarProps {
  day: string;
  at: number;
  x: number;
  width: number;
  top: number;
  series: readonly Series[];
  measure: Measure;
}

function Bar({ day, at, x, width, top, series, measure }: BarProps) {
  let foot = HEIGHT;
  const parts = series.map((one, number) => {
    const height = ((one.days[at]?.[measure] ?? 0) / top) * HEIGHT;
    foot -= height;
    return height > 0 && <rect key={one.group} className={`series-${number}`} x={x + width * 0.1} y={foot} width={width * 0.8} height={height} />;
  });
  const lines = series.filter((one) => (one.days[at]?.[measure] ?? 0) > 0).map((one) => `${one.group}: ${shown(measure, one.days[at]?.[measure] ?? 0)}`);
  return (
    <g>
      <title>{[day, ...lines].join("\n")}</title>
      <rect className="chart-day" x={x} y={0} width={width} height={HEIGHT} />
      {parts}
    </g>
  );
}
